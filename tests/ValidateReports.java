import com.pixelmed.validate.DicomSRValidator;

/** Validates structured reports with PixelMed, all in one process: to start it takes longer than to validate. */
public final class ValidateReports {
    public static void main(String[] names) throws Exception {
        DicomSRValidator validator = new DicomSRValidator();
        for (String name : names) {
            System.out.println("File: " + name);
            System.out.println(validator.validate(name));
        }
    }
}
